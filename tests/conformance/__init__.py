"""Every public class of Keras, trained by the engine as by Keras itself, or refused by name."""
