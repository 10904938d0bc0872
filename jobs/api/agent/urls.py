"""Routes of the agent protocol."""

from django.urls import path

from jobs.api.agent import views

urlpatterns = [
    path("enrol/", views.enrol, name="agent-enrol"),
    path("hello/", views.hello, name="agent-hello"),
    path("wanted/", views.wanted, name="agent-wanted"),
    path("reports/", views.reports, name="agent-reports"),
    path("jobs/<int:job_id>/code/", views.code, name="agent-code"),
    path("jobs/<int:job_id>/checkpoint/", views.checkpoint, name="agent-checkpoint"),
    path("jobs/<int:job_id>/adopted/", views.adopted, name="agent-adopted"),
    path("jobs/<int:job_id>/source/", views.source, name="agent-source"),
    path("validations/<int:validation_id>/code/", views.code, name="agent-validation-code"),
    path(
        "validations/<int:validation_id>/checkpoint/",
        views.checkpoint,
        name="agent-validation-checkpoint",
    ),
    path("validations/<int:validation_id>/source/", views.source, name="agent-validation-source"),
    path("jobs/<int:job_id>/files/<str:name>/", views.files, name="agent-files"),
]
